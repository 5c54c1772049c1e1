"""What the ranks of a job did: recorded in each process, read together afterwards.

Reading needs no torch: records are plain data, and every analysis is a function of the dumps of all ranks.
"""
