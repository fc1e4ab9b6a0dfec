"""Plans of MSCCL++, whoever wrote them: whether they compute their collective in any order."""
