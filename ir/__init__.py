"""The intermediate representation: types, dialects, symbolic shapes, text format, import and reference interpreter."""
