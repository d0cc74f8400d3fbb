# Recursion, vectors, models, strings and sorting, for the given number of seconds.
end <- Sys.time() + as.numeric(commandArgs(TRUE)[1])
fib <- function(n) if (n < 2) n else fib(n - 1) + fib(n - 2)
sum <- 0
while (Sys.time() < end) {
  m <- matrix(runif(40000), 200)
  sum <- sum + fib(15) + det(m %*% m) * 0 + length(sort(runif(10000)))
  fit <- lm(y ~ x, data.frame(x = 1:1000, y = rnorm(1000)))
  words <- sapply(1:500, function(i) paste0("word", i %% 97))
  sum <- sum + nchar(paste(gsub("w(\\w+)", "\\1", words), collapse = " ")) + length(unique(words))
}
print(sum)
