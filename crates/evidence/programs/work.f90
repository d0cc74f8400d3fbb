recursive function fib(n) result(r)
  integer(8), intent(in) :: n
  integer(8) :: r
  if (n < 2) then
    r = n
  else
    r = fib(n - 1) + fib(n - 2)
  end if
end function

program work
  interface
    recursive function fib(n) result(r)
      integer(8), intent(in) :: n
      integer(8) :: r
    end function
  end interface
  real(8) :: a(200, 200), b(200, 200)
  integer(8) :: total
  total = 0
  do while (total >= 0)
    total = mod(total + fib(27_8), 1000_8)
    call random_number(a)
    b = matmul(a, a)
    total = total + int(maxval(b), 8)
  end do
end program
