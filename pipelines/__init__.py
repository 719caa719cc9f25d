"""Beam pipelines over :mod:`migrate`: thin, each fits one screen.

transforms.py   Rewrite, Verify, Receipts, Commit as PTransforms
batch.py        Create(ranges) | Items | Rewrite | Verify | Receipts | Commit
reconcile.py    Create(pairs of model and target) | Reconcile: the scheduled job
runners.py      runner names -> Beam runners and options
"""
