//! Encodes a stack of 302 frames in eleven bytes and decodes it.

use backtrail_api::cbf::{Decoder, Encoder, End, Frame, WordSize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut buffer = [0; 64];
    let mut encoder = Encoder::new(&mut buffer, WordSize::Bits64)?;
    encoder.push(Frame::Pc(0x40_1000))?;
    encoder.push_repeated(Frame::Ra(0x40_1010), 301)?;
    let len = encoder.finish(End::Complete);
    println!("{len} bytes");
    for repeated in Decoder::new(&buffer[..len])? {
        let repeated = repeated?;
        println!("{:?} {} times", repeated.frame, repeated.repeat);
    }
    Ok(())
}
