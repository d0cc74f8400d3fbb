with Ada.Text_IO;
procedure Work is
   function Fib (N : Integer) return Long_Integer is
   begin
      if N < 2 then
         return Long_Integer (N);
      else
         return Fib (N - 1) + Fib (N - 2);
      end if;
   end Fib;
   task type Worker;
   task body Worker is
      Sum : Long_Integer := 0;
   begin
      loop
         Sum := (Sum + Fib (28)) mod 1000;
         exit when Sum < 0;
      end loop;
      Ada.Text_IO.Put_Line (Long_Integer'Image (Sum));
   end Worker;
   One, Other : Worker;
begin
   null;
end Work;
