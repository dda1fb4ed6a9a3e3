"""Methods to compare with, each written from its published description and as plainly as it can be."""
