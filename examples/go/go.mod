module tapegrad.example/mlp

go 1.18
