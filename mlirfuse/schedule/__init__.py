"""Maps segments to kernels. ``cpu`` and ``gpu`` have one file per scheduler; each lists its schedulers in
``scheduler_list.py``."""
