"""Models that look at images: one file a model, and what several of them share.

prepare.py    from pixels to a graph's input, and back from its coordinates to the image's
boxes.py      non-maximum suppression, and results from arrays of boxes
base.py       models that classify, detect and segment, apart from what is special to each
"""
