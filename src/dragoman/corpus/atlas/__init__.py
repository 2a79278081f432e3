"""The corpus that comes with dragoman: real facts as passages, triples and questions."""
