{$mode objfpc}
program work;
type
  TShape = class
    function area(n: integer): int64; virtual;
  end;
var
  shape: TShape;
  text: ansistring;
  sum: int64;

function fib(n: integer): int64;
begin
  if n < 2 then result := n else result := fib(n - 1) + fib(n - 2);
end;

function TShape.area(n: integer): int64;
begin
  result := fib(n);
  if n > 20 then result := result + area(n - 1);
end;

begin
  shape := TShape.create;
  sum := 0;
  repeat
    sum := sum + shape.area(27);
    str(sum, text);
    sum := sum mod 1000 + length(text);
  until sum < 0;
end.
