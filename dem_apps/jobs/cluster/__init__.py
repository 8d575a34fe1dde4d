"""Trainings on several machines, by Ray: it places jobs on nodes and starts them again when a node dies.

``executor`` connects and hands out jobs, ``connect`` says what is wrong with a cluster, ``node`` is a job on its node,
``supervise`` the process between Ray's and the training, ``transfer`` brings run folders back. The last three need the
standard library only: they are sent to the nodes, where Ray's processes stay small and import nothing of this package.
"""
