"""Fifty structured extractions with asyncio: tasks share forward passes, and every answer fits the schema."""

import asyncio

from pydantic import BaseModel, Field

import stretto

NAMES = ("Anna", "Ben", "Carla", "Dan", "Eva")
TEXTS = [f"{name} bought {count} lamps." for name in NAMES for count in range(3, 13)]
EXAMPLE = 'Text: Jim wants 2 chairs.\nJSON: {"name": "Jim", "count": 2}\n'


class Order(BaseModel):
    """What is extracted from a text."""

    name: str = Field(max_length=20)
    count: int = Field(ge=1, le=1000)


async def main() -> None:
    """Extract all orders at once; the example at the start of each prompt is computed once."""
    options = stretto.Options(grammar=stretto.Grammar.json(Order, closed=True), temperature=0)
    with stretto.load("smollm2", cells=4096) as llm:
        tasks = [llm.agenerate(f"{EXAMPLE}Text: {text}\nJSON: ", options) for text in TEXTS]
        orders = [Order.model_validate_json(result.text) for result in await asyncio.gather(*tasks)]
        print(f"{len(orders)} orders in {llm.metrics.steps} steps: {orders[0]}, …, {orders[-1]}")


asyncio.run(main())
