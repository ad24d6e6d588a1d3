"""Folders of the Potsdam and Vaihingen archives."""

from __future__ import annotations

_COMPLETE = "ISPRS_semantic_labeling_Vaihingen_ground_truth_COMPLETE"
_ERODED = "ISPRS_semantic_labeling_Vaihingen_ground_truth_eroded_COMPLETE"

VIEW_FOLDERS = {"RGB": "2_Ortho_RGB", "IRRG": "3_Ortho_IRRG", "RGBIR": "4_Ortho_RGBIR"}
"""Of Potsdam's pictures."""

LABEL_FOLDERS = {
    "potsdam": {
        "official": ("5_Labels_all/", "5_Labels_all_noBoundary/"),
        "flat": ("", ""),
        "nested": ("5_Labels_all/5_Labels_all/", "5_Labels_all_noBoundary/5_Labels_all_noBoundary/"),
        "participants": ("5_Labels_for_participants/", "5_Labels_for_participants_no_Boundary/"),
    },
    "vaihingen": {
        "official": (f"{_COMPLETE}/", f"{_ERODED}/"),
        "flat": ("", ""),
        "gts": ("gts/", "gts/"),
        "participants": ("gts_for_participants/", "gts_eroded_for_participants/"),
    },
}
"""Layout to the folders of full and eroded labels; `participants` holds those of the training tiles only."""
