"""Models for speech."""

from __future__ import annotations

from stretto.weights.hub.bundles.bundle import Bundle, Member, Package

SOUNDS: tuple[Bundle, ...] = (
    Bundle(
        name="moonshine",
        summary="Moonshine tiny, int8, with Silero VAD: English speech to text",
        verbs=("transcribe",),
        license="MIT",
        license_url="https://github.com/moonshine-ai/moonshine-js/blob/main/LICENSE",
        packages=(
            Package(
                registry="npm",
                name="@moonshine-ai/moonshine-js",
                version="0.1.29",
                nbytes=21_514_347,
                members=(
                    Member(
                        "package/dist/model/tiny/quantized/decoder_model_merged.onnx",
                        "decoder_model_merged.onnx",
                        20_243_286,
                        "eed87831c3a6103534aae7d47a5d485025c659a1323901513961c39fe8a1a367",
                    ),
                    Member(
                        "package/dist/model/tiny/quantized/encoder_model.onnx",
                        "encoder_model.onnx",
                        7_937_661,
                        "c6fc4b7bc5af75c0591fd157a1f3829b533d18e9769a888fd95a62e470dd4f4a",
                    ),
                ),
                notices=(("package/LICENSE", "moonshine-LICENSE.txt"),),
            ),
            Package(
                registry="pypi",
                name="useful-moonshine-onnx",
                version="20251121",
                nbytes=729_305,
                members=(
                    Member(
                        "moonshine_onnx/assets/tokenizer.json",
                        "tokenizer.json",
                        1_985_533,
                        "b68b995a58b3373db6c4f46864a9db50cd1333d086150ffa2c1096581ede9c10",
                    ),
                ),
                notices=(
                    (
                        "useful_moonshine_onnx-20251121.dist-info/LICENSE",
                        "useful-moonshine-onnx-LICENSE.txt",
                    ),
                ),
            ),
            Package(
                registry="pypi",
                name="silero-vad",
                version="6.2.3",
                nbytes=11_317_527,
                members=(
                    Member(
                        "silero_vad/data/silero_vad_16k_sequence.onnx",
                        "silero_vad_16k_sequence.onnx",
                        1_246_165,
                        "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
                    ),
                ),
                notices=(("silero_vad-6.2.3.dist-info/licenses/LICENSE", "silero-vad-LICENSE.txt"),),
            ),
        ),
    ),
)
