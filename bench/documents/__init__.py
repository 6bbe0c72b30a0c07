# SPDX-License-Identifier: MIT
"""Figures and tables of documents, from measured results."""
