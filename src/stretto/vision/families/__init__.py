"""The projectors of `mmproj` files, one file each."""

from stretto.vision.families.base import Family
from stretto.vision.families.gemma3 import Gemma3
from stretto.vision.families.gemma4 import Gemma4
from stretto.vision.families.idefics3 import Idefics3
from stretto.vision.families.internvl import InternVL
from stretto.vision.families.llama4 import Llama4
from stretto.vision.families.llava import Llava
from stretto.vision.families.minicpmv import MiniCPMV
from stretto.vision.families.pixtral import Pixtral
from stretto.vision.families.qwen2vl import Qwen2VL, Qwen25VL
from stretto.vision.families.qwen3vl import Qwen3VL
from stretto.vision.families.whisper import Qwen2Audio, Voxtral

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(Llava(), Idefics3(), Gemma3(), Pixtral(), Qwen2VL(), Qwen25VL(), Qwen3VL(), InternVL()),
        *(Gemma4(), Llama4(), MiniCPMV(), Voxtral(), Qwen2Audio()),
    )
}

__all__ = ["FAMILIES", "Family"]
