"""The decoder of images under the name by which a checkpoint's code finds it; `save_pretrained` writes the file it is from."""

from data.decoding import upright_rgb as upright_rgb
