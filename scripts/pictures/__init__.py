"""The drawings and plots of the documents; scripts/doc_pictures.py writes them."""
