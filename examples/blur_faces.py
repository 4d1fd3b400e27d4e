"""Hide the faces in an image: found by CenterFace, replaced by a few large squares."""

import argparse

import numpy as np
from PIL import Image

import stretto

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("image")
parser.add_argument("out")
options = parser.parse_args()

image = stretto.Image.open(options.image)
with stretto.load("centerface") as model:
    faces = model.detect(image)

shown = Image.fromarray(image.pixels)
for face in faces:
    place = tuple(np.rint(face.box.corners).astype(int))
    part = shown.crop(place)
    coarse = part.resize((8, 8), Image.Resampling.BOX)
    shown.paste(coarse.resize(part.size, Image.Resampling.NEAREST), place)
shown.save(options.out)
print(f"{len(faces)} hidden; model under {faces.license}")
