"""The nouns: sites, kinds, selections, stats, frames, findings, errors. Imports neither torch nor any higher floor."""
