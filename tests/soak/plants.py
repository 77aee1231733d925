PLANTS = {}
