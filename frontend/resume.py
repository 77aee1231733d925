"""Placeholder until the real one lands."""


def free_names(code):
    return code.co_freevars


def resume_code(*args, **kwargs):
    raise NotImplementedError


generator_code = resume_code
