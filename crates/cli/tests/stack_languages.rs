//! `backtrail stack --args`: values and names of functions in Ada, D and Fortran, in programs that
//! know their arguments. gdb 13 shows the same values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::command::{self, Signal};
use backtrail_testkit::{TempDir, available, scratch};

use crate::stack::{LIMIT, parked, stack};
use crate::stack_args::{stack_of, values, with_tables};

const ADA: &str = r#"
with Interfaces.C; use Interfaces.C;
procedure Program is
   type Level is range 0 .. 200;
   for Level'Size use 8;
   subtype Small is Integer range 1 .. 10;
   type Row is array (Positive range <>) of Integer;
   type Point is record
      X, Y : Integer;
   end record;
   type Colour is (Red, Green);
   Total : Integer := 0;
   procedure C_Write (Into : int; From : String; Count : size_t);
   pragma Import (C, C_Write, "write");
   procedure C_Pause;
   pragma Import (C, C_Pause, "pause");
   package Work is
      procedure Waits (Name : String; Numbers : Row; P : Point; N : Small; L : Level; C : Colour; F : Long_Float; Empty : String);
      pragma No_Inline (Waits);
   end Work;
   package body Work is
      procedure Waits (Name : String; Numbers : Row; P : Point; N : Small; L : Level; C : Colour; F : Long_Float; Empty : String) is
      begin
         C_Write (1, "ready" & Character'Val (10), 6);
         loop
            C_Pause;
            exit when Total = 1;
         end loop;
         Total := Name'Length + Numbers (1) + P.X + N + Integer (L) + Colour'Pos (C) + Integer (F) + Empty'Length;
      end Waits;
   end Work;
begin
   Work.Waits ("a name", (7, 8, 9), (3, -4), 5, 200, Green, 2.5, "");
end Program;
"#;

const D: &str = r#"
import core.sys.posix.unistd;
struct Point { int x; double y; }
__gshared int go = 1;
struct Work {
    pragma(inline, false)
    static int waits(string name, int[] numbers, const(Point)[] points, Point p, int n, string part, int[] none)
    {
        write(1, "ready\n".ptr, 6);
        while (go)
            pause();
        return cast(int)(name.length + numbers[0] + points[0].x + p.x + n + part.length + none.length);
    }
}
int main(string[] args)
{
    int n = cast(int) args.length;
    return Work.waits("a name", [n, 8, 9], [Point(n, 2.5)], Point(3, 4.5), n + 4, "a part of it"[2 .. 6], null);
}
"#;

const FORTRAN: &str = r#"
module work
  type point
    integer :: x
    character(3) :: mark
  end type
contains
  recursive subroutine waits(n, x, p, fixed, z)
    integer, intent(in) :: n
    real(8), intent(in) :: x
    type(point), intent(in) :: p
    character(5) :: fixed
    complex(8) :: z
    interface
      subroutine c_pause() bind(c, name='pause')
      end subroutine
      subroutine c_write(into, from, count) bind(c, name='write')
        use iso_c_binding
        integer(c_int), value :: into
        character(c_char), intent(in) :: from(*)
        integer(c_size_t), value :: count
      end subroutine
    end interface
    call c_write(1, (/ 'r', 'e', 'a', 'd', 'y', char(10) /), 6_8)
    do
      call c_pause()
      if (n == 0) exit
    end do
    print *, x, p%x, p%mark, fixed, z
  end subroutine
end module
program main
  use work
  character(5) :: fixed = 'fixed'
  call waits(7, 2.5d0, point(1, 'abc'), fixed, (1d0, 2d0))
end program
"#;

/// A program in a file of this name; `None` without the compiler.
fn program(folder: &TempDir, compiler: &[&str], name: &str, source: &str) -> Option<PathBuf> {
    std::fs::write(folder.path().join(name), source).expect("it can be written");
    let (compiler, options) = compiler.split_first().expect("a compiler");
    let mut command = Command::new(compiler);
    command.args(options).arg(name).current_dir(folder.path());
    let built = available(command::run(&mut command, LIMIT))?;
    assert!(built.status.success(), "{}", built.describe());
    Some(folder.path().join("program"))
}

/// The arguments of the function `waits`, and what `stack` shows of its name.
fn waits(program: &Path, folder: &TempDir) -> (BTreeMap<String, String>, String) {
    let [whole, stripped] = with_tables(program, folder);
    let running = parked(&whole, &[]);
    let pid = running.pid().to_string();
    let shown = values(&stack_of(Path::new(&pid), &stripped));
    let text = stack(&["--exe", whole.to_str().expect("a name"), &pid]).stdout;
    running.signal(Signal::KILL);
    let own = shown
        .into_iter()
        .filter(|((function, _), _)| function.contains("waits"));
    (own.map(|((_, name), (value, _))| (name, value)).collect(), text)
}

fn check(folder: &TempDir, program: &Path, name: &str, expected: &[(&str, &str)]) {
    let (values, text) = waits(program, folder);
    for (argument, expected) in expected {
        let value = values.get(*argument).map_or("...", String::as_str);
        assert_eq!(value, *expected, "{argument}: {values:?}");
    }
    assert!(text.contains(&format!(" in {name}+0x")), "{name}: {text}");
}

#[test]
fn values_and_names_of_ada() {
    let folder = scratch();
    let compiler = ["gnatmake", "-q", "-g", "-O0"];
    let Some(program) = program(&folder, &compiler, "program.adb", ADA) else {
        return;
    };
    let expected = [
        ("name", r#""a name""#),
        ("numbers", "{7, 8, 9}"),
        ("p", "{x = 3, y = -4}"),
        ("n", "5"),
        ("l", "200"),
        ("c", "green"),
        ("f", "2.5"),
        ("empty", r#""""#),
    ];
    check(&folder, &program, "program.work.waits", &expected);
}

#[test]
fn values_and_names_of_d() {
    let folder = scratch();
    let compiler = ["ldc2", "-g", "-O0", "-of=program"];
    let Some(program) = program(&folder, &compiler, "program.d", D) else {
        return;
    };
    let expected = [
        ("name", r#""a name""#),
        ("numbers", "{1, 8, 9}"),
        ("points", "{{x = 1, y = 2.5}}"),
        ("n", "5"),
        ("part", r#""part""#),
        ("none", "{}"),
    ];
    let name = "program.Work.waits(immutable(char)[], int[], const(program.Point)[], program.Point, int, immutable(char)[], int[])";
    check(&folder, &program, name, &expected);
}

#[test]
fn values_and_names_of_fortran() {
    let folder = scratch();
    let compiler = ["gfortran", "-g", "-O0", "-o", "program"];
    let Some(program) = program(&folder, &compiler, "program.f90", FORTRAN) else {
        return;
    };
    let expected = [
        ("n", "7"),
        ("x", "2.5"),
        ("p", r#"{x = 1, mark = "abc"}"#),
        ("fixed", r#""fixed""#),
        ("z", "1 + 2i"),
    ];
    check(&folder, &program, "work::waits", &expected);
}
