"""The work of seg.evaluate and seg.export: scores, predictions and entropy maps of a trained network."""
