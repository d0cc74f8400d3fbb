-- Recursion, lazy lists and maps, for the given number of seconds.
module Main where
import qualified Data.Map.Strict as M
import Data.List (sort)
import System.Environment (getArgs)
import Data.IORef
import Control.Monad (when)
import System.CPUTime (getCPUTime)

fib :: Int -> Integer
fib n = if n < 2 then toInteger n else fib (n - 1) + fib (n - 2)
{-# NOINLINE fib #-}

data T = L | N T T
tree :: Int -> T
tree 0 = L
tree d = N (tree (d - 1)) (tree (d - 1))
count :: T -> Integer
count L = 1
count (N a b) = 1 + count a + count b

ws :: Int -> Integer
ws n = toInteger (length (unwords (sort (M.keys (M.fromListWith (+) [("word" ++ show (i `mod` 97), 1 :: Int) | i <- [1 .. n]])))))

loop :: IORef Integer -> Integer -> Int -> IO ()
loop sums end k = do
  let s = fib (18 + k `mod` 2) + count (tree (10 + k `mod` 2)) + ws (1000 + k `mod` 2) + product [1 .. toInteger (300 + k `mod` 2)] `mod` 1000003
  modifyIORef' sums (+ s)
  now <- getCPUTime
  when (now < end) (loop sums end (k + 1))

main :: IO ()
main = do
  [seconds] <- getArgs
  now <- getCPUTime
  sums <- newIORef 0
  loop sums (now + read seconds * 1000000000000) 0
  readIORef sums >>= print
