# %% [markdown]
# # Quickstart
# Ten clients, each with ten classes of CIFAR-100 that no other has, learn prompts for one frozen
# CLIP-like model together. Their images are packaged with focoop as features, so that this runs in
# seconds on a laptop.
#
# This file is a notebook: open it in Jupyter (jupytext) or VS Code, or run `python
# examples/quickstart.py`. Lines after `# >` show what it prints; on another processor numbers
# agree within 0.5.

# %%
import focoop

run = focoop.run("demo/focoop_plus", {"data.corrupted": []}, out="runs/quickstart", resume=True)
print(f"own classes {100 * run.summary['accuracy_own']:.1f} %")
print(f"all classes {100 * run.summary['accuracy_all']:.1f} %")
# > own classes 80.7 %
# > all classes 48.5 %

# %% [markdown]
# The model chooses among all 100 classes. *Own* is the accuracy on a client's own test images,
# *all* on those of all clients. `run.metrics`, `run.clients` and `run.rounds` hold every number;
# `run.frame("clients")` is a pandas DataFrame where pandas is installed.

# %%
best = max(run.clients, key=lambda row: row["accuracy_own"])
print(f"client {best['client']} is best on its own images: {100 * best['accuracy_own']:.1f} %")
print(f"bytes up in the first round: {run.rounds[0]['bytes_up'] / 1e6:.1f} MB")
# > client 3 is best on its own images: 89.5 %
# > bytes up in the first round: 3.7 MB

# %% [markdown]
# Now images of no known class: textures, which no client has seen. A higher score means more
# foreign.

# %%
client = 3
known = run.scores("test", client=client)[run.own_rows(client)]
foreign = run.scores("dtd_32px", client=client)
area = focoop.metrics.auroc(known, foreign)
print(f"client {client} tells textures from its own images: AUROC {100 * area:.1f} %")
# > client 3 tells textures from its own images: AUROC 95.9 %

# %% [markdown]
# Images are compared with one feature for every class, which you can read too.

# %%
text = run.text_features(client=client)
print(f"{len(run.class_names)} classes, {text['id'].shape[1]} dimensions")
# > 100 classes, 256 dimensions
