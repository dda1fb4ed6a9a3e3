"""Texture features: filter responses, textons, histograms of patches."""
