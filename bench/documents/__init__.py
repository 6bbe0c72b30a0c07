"""Figures and tables of documents, from measured results."""
