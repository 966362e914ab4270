"""Images that users bring: what lies at a path or in arrays (collection), cut as a model takes it (sizes, reader), with its classes.

Upon that stand the small images of an upsampler, the inputs of a translator, and tables of attributes.
"""
