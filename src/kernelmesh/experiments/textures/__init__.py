"""From pictures to features: filter responses, textons, histograms of patches."""
