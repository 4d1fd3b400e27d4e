"""Models that read the text in images."""

from __future__ import annotations

from stretto.weights.hub.bundles.bundle import Bundle, Member, Package

READING: tuple[Bundle, ...] = (
    Bundle(
        name="ppocr",
        summary="PP-OCRv6 small: reads printed text, Latin and Chinese characters",
        verbs=("read",),
        license="Apache-2.0",
        license_url="https://github.com/PaddlePaddle/PaddleOCR/blob/main/LICENSE",
        packages=(
            Package(
                registry="pypi",
                name="rapidocr",
                version="3.9.2",
                nbytes=27_275_208,
                members=(
                    Member(
                        "rapidocr/models/PP-OCRv6_det_small.onnx",
                        "PP-OCRv6_det_small.onnx",
                        9_929_594,
                        "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
                    ),
                    Member(
                        "rapidocr/models/PP-OCRv6_rec_small.onnx",
                        "PP-OCRv6_rec_small.onnx",
                        21_234_383,
                        "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
                    ),
                    Member(
                        "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
                        "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
                        585_532,
                        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
                    ),
                ),
                notices=(("rapidocr-3.9.2.dist-info/METADATA", "rapidocr-METADATA.txt"),),
            ),
        ),
    ),
)
