"""One request from its header to its answer: dispatch, context, authorization, services by room."""
