"""Tuning: measures configurations in worker processes, keeps records, finds the best again."""
