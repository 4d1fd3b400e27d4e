"""Objects in a photograph, drawn onto it.

python examples/find_objects.py street.jpg out.png
"""

import sys

import stretto

source, target = sys.argv[1:3]
with stretto.load("centernet") as model:
    found = model.detect(source)
    print(found)
    found.draw(source).save(target)
