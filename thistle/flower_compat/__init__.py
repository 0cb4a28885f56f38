"""Everything that reaches below the public interface of Flower and Ray: one small module for each reason.

tests/flower_compat/ compares each with the Flower and the Ray that are installed, so that an upgrade which breaks one
of them is noticed there. Importing this package imports nothing.
"""
