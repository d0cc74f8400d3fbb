//! From a recording to samples with names.

use backtrail_profile::{CodeAddress, File, Options, Profile, Report, StackFrame, StackId, is_kernel_address};
use backtrail_recording::{Origin, ReadError, Reader};
use rustc_hash::FxHashMap;

use crate::samples::{CodeFile, Ending, Frame, Node, Process, Row, Samples, Thread};

impl Samples {
    /// Reads a whole recording. Of the options, those hold that say which samples count and where
    /// names come from; no stack is left out.
    ///
    /// # Errors
    ///
    /// If the recording cannot be read.
    pub fn read(reader: &mut Reader, options: Options) -> Result<Samples, ReadError> {
        let options = Options {
            process_root: false,
            thread_root: false,
            mark_incomplete: true,
            keep_samples: true,
            max_frames: usize::MAX,
            ..options
        };
        let profile = Profile::of_recording(reader, options)?;
        let report = profile.finish(reader.stream_bytes());
        Ok(Samples::of(&report, reader.origin().clone()))
    }

    /// The samples of a report without processes and threads on its stacks.
    fn of(report: &Report, origin: Origin) -> Samples {
        let mut samples = Samples {
            origin,
            measure: report.summary().measure.clone(),
            lost: report.summary().lost,
            trace_bytes: report.summary().trace_bytes,
            notes: report.notes().to_vec(),
            nodes: vec![Node { parent: 0, frame: 0 }],
            ..Samples::default()
        };
        let nodes = samples.add_stacks(report);
        let threads = samples.add_threads(report);
        let mut endings: FxHashMap<Ending, u8> = FxHashMap::default();
        samples.rows.reserve_exact(report.samples().len());
        for sample in report.samples() {
            let ending = Ending {
                stop: sample.stop,
                live: sample.live,
            };
            let ending = *endings.entry(ending).or_insert_with(|| {
                samples.endings.push(ending);
                // There are two for each of a few reasons.
                samples.endings.len() as u8 - 1
            });
            samples.rows.push(Row {
                time: sample.time,
                thread: threads[sample.thread.index()],
                cpu: sample.cpu,
                node: nodes[sample.stack.index()],
                ending,
                weight: sample.weight,
            });
        }
        samples
    }

    /// Adds the stacks that have samples; returns the node of each, by its number in the report.
    fn add_stacks(&mut self, report: &Report) -> Vec<u32> {
        let stacks = report.stacks();
        let totals = stacks.totals();
        let mut nodes = vec![0; stacks.len() + 1];
        let mut frames: FxHashMap<StackFrame, u32> = FxHashMap::default();
        let mut files = Files::default();
        for stack in stacks.ids().filter(|stack| totals[stack.index()] > 0) {
            let frame = stacks.frame(stack);
            let frame = *frames.entry(frame).or_insert_with(|| {
                let frame = match frame {
                    StackFrame::Marker(marker) => Frame::Marker(stacks.marker(marker).to_owned()),
                    StackFrame::Location(id) => {
                        let code = report.address(id);
                        self.locations.push(report.location(id).clone());
                        Frame::Code {
                            address: code.address,
                            file: files.number(code, &mut self.files),
                            location: self.locations.len() as u32 - 1,
                        }
                    }
                };
                self.frames.push(frame);
                self.frames.len() as u32 - 1
            });
            let parent = match stacks.parent(stack) {
                StackId::EMPTY => 0,
                parent => nodes[parent.index()],
            };
            nodes[stack.index()] = self.nodes.len() as u32;
            self.nodes.push(Node { parent, frame });
        }
        nodes
    }

    /// Adds the threads that have samples; returns the index of each, by its number in the report.
    fn add_threads(&mut self, report: &Report) -> Vec<u32> {
        let mut processes: FxHashMap<(u32, &str), u32> = FxHashMap::default();
        let threads = report.threads().iter().map(|(thread, samples)| {
            if *samples == 0 {
                return 0;
            }
            let process = *processes.entry((thread.pid, &thread.process)).or_insert_with(|| {
                self.processes.push(Process {
                    pid: thread.pid,
                    name: thread.process.clone(),
                });
                self.processes.len() as u32 - 1
            });
            self.threads.push(Thread {
                process,
                tid: thread.tid,
                name: thread.name.clone(),
            });
            self.threads.len() as u32 - 1
        });
        threads.collect()
    }
}

/// The files that were met.
#[derive(Default)]
struct Files<'r> {
    numbers: FxHashMap<&'r File, u32>,
}

impl<'r> Files<'r> {
    /// The index of the file with this code, which is added to `all` if it is new. Memory that a
    /// program filled itself is no file.
    fn number(&mut self, code: CodeAddress<'r>, all: &mut Vec<CodeFile>) -> Option<u32> {
        let file = code.file?;
        if file.is_anonymous() && file.path != "[vdso]" && !is_kernel_address(code.address) {
            return None;
        }
        let number = *self.numbers.entry(file).or_insert_with(|| {
            all.push(CodeFile {
                path: file.path.clone(),
                build_id: file.build_id.clone(),
                start: code.extent.0,
                end: code.extent.1,
            });
            all.len() as u32 - 1
        });
        let known = &mut all[number as usize];
        known.end = known.end.max(code.address.saturating_add(1));
        Some(number)
    }
}
