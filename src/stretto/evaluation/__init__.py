"""Quality of a model in numbers: perplexity, KL divergence to another model, multiple choice.

    from stretto.evaluation import perplexity
    perplexity(llm, text).perplexity.value

For `stretto perplexity` and `stretto eval`, and for programs of your own (stretto docs evaluation).
"""

from stretto.evaluation.choices import ChoiceReport, Question, multiple_choice, read_questions
from stretto.evaluation.perplexity import Comparison, PerplexityReport, perplexity, plot_windows
from stretto.evaluation.reading import Window, half_scored_windows, strided_windows
from stretto.evaluation.statistics import Estimate

__all__ = [
    "ChoiceReport",
    "Comparison",
    "Estimate",
    "PerplexityReport",
    "Question",
    "Window",
    "half_scored_windows",
    "multiple_choice",
    "perplexity",
    "plot_windows",
    "read_questions",
    "strided_windows",
]
