"""The work of seg.evaluate and seg.export, and the prediction of one image."""
