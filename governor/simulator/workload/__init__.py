"""The work that the demo models really do, without any server around it.

The modules here are used twice: by the models that a real Triton runs, inside Triton's own Python (which has
nothing of this project installed and imports them as plain files: a `.pth` file names their directory),
and by their simulated twins. So they import only the standard library and one another not at all.

`alice.txt` holds chapters I to IV of Lewis Carroll's "Alice's Adventures in Wonderland" (1865), in the public
domain.
"""
