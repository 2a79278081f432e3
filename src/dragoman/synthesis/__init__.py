"""Questions for a corpus that has none, in the manner of DataMorgana (Filice et al. 2025; mRAG, section 2)."""
