"""The parts of ``python -m seg.adapt``: a trained network, a folder of images without labels, and whether it helped."""
