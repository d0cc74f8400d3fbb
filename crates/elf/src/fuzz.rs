//! What fuzzing runs: every function that reads untrusted bytes.

use crate::{Image, Symbols, Table};

/// Parses `data` as a file and as memory, and asks for everything that an image can tell.
pub fn image(data: &[u8]) {
    for parsed in [Image::parse(data), Image::parse_memory(data, 0x7f12_3456_7000)] {
        let Ok(image) = parsed else { continue };
        touch(&image);
    }
}

fn touch(image: &Image<'_>) {
    let _ = (image.build_id(), image.debuglink(), image.debugaltlink());
    let _ = (image.base_vaddr(), image.mem_size(), image.code_ranges());
    let _ = (
        image.text_address(),
        image.got_address(),
        image.svma_of_offset(image.entry()),
    );
    let _ = (image.eh_frame(), image.eh_frame_hdr(), image.sframe());
    // Decompressing costs up to a thousandfold; the first sections show all there is to see.
    for section in image.sections().iter().take(64) {
        if let Err(error) = image.contents(section).and_then(|_| image.relocated(section)) {
            let _ = error.to_string();
        }
    }
    for table in [Table::Full, Table::Dynamic] {
        if let Some((symbols, _)) = image.symbol_table(table) {
            let _ = symbols.take(64).count();
        }
    }
    let symbols = Symbols::new(image);
    for symbol in symbols.iter().take(64) {
        assert!(symbol.size > 0, "a symbol of no size would cover nothing");
        assert!(
            symbols
                .lookup(symbol.address)
                .is_some_and(|found| found.address == symbol.address)
        );
    }
}
