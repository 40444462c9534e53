module mirror

go 1.19
