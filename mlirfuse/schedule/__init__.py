"""How segments become kernels: ``cpu`` and ``gpu`` have a file a scheduler, each lists them in ``choice.py``."""
