//! Chooses the functions whose arguments a table describes everywhere, not only at calls, so that
//! innermost frames have theirs: those in which the most is known for the fewest records, as long
//! as the table stays small.

use backtrail_args::table::write::{Function, Location, Site};

use super::Unfinished;

/// The limit on a table's size: this fraction of the code that it describes.
const MOST: f64 = 0.08;
/// Tables of small programs may have this many bytes in any case.
const SMALL: f64 = 4096.0;
/// How often a choice is made smaller if its table is too large.
const TRIES: u32 = 4;

/// What describing a function everywhere costs and gives.
struct Choice {
    index: usize,
    /// The number of values in the records that it needs.
    cost: f64,
    /// The number of values known at each byte of its code, summed.
    gain: f64,
}

/// The functions and their table. Without any chosen function, a table may be larger than the
/// limit.
pub(super) fn within_limit(
    made: Vec<Unfinished>,
    finished: &dyn Fn(Vec<Unfinished>) -> Vec<Function>,
    write: &dyn Fn(&[Function]) -> Vec<u8>,
) -> (Vec<Function>, Vec<u8>) {
    let code: u64 = made.iter().map(|one| one.made.end - one.made.start).sum();
    let limit = (code as f64 * MOST).max(SMALL);
    let table = |made: Vec<Unfinished>| {
        let functions = finished(made);
        let bytes = write(&functions);
        (functions, bytes)
    };
    let whole = table(made.clone());
    if whole.1.len() as f64 <= limit {
        return whole;
    }
    let mut choices: Vec<Choice> = made
        .iter()
        .enumerate()
        .map(|(index, one)| choice(index, &one.made))
        .collect();
    let all: f64 = choices.iter().map(|choice| choice.cost).sum();
    let least = table(chosen(&made, &[]));
    let free = limit - least.1.len() as f64;
    let more = whole.1.len() as f64 - least.1.len() as f64;
    choices.sort_by(|one, other| {
        let order = (other.gain * one.cost).total_cmp(&(one.gain * other.cost));
        order.then(one.index.cmp(&other.index))
    });
    let mut share = free / more;
    for _ in 0..TRIES {
        if share <= 0.0 {
            break;
        }
        let mut left = all * share;
        let taken = choices.iter().filter(|choice| {
            let fits = choice.cost <= left;
            left -= if fits { choice.cost } else { 0.0 };
            fits
        });
        let taken: Vec<usize> = taken.map(|choice| choice.index).collect();
        let found = table(chosen(&made, &taken));
        if found.1.len() as f64 <= limit {
            return found;
        }
        share *= 0.9 * limit / found.1.len() as f64;
    }
    least
}

fn choice(index: usize, function: &Function) -> Choice {
    let is_known = |place: &&Location| **place != Location::LOST;
    let sites = || function.calls.iter().filter(|call| call.site != Site::Jump);
    let between = sites().filter(|call| call.site == Site::Between);
    // A record has its address, too.
    let cost = between.map(|call| 1 + call.places.len()).sum::<usize>();
    let until = sites().map(|call| call.return_address).skip(1).chain([function.end]);
    let gain = sites().zip(until).map(|(call, until)| {
        // Arguments that are still where they were passed are known anyway.
        let from = call.return_address.max(function.start.saturating_add(function.prefix));
        until.saturating_sub(from) * call.places.iter().filter(is_known).count() as u64
    });
    Choice {
        index,
        cost: cost as f64,
        gain: gain.sum::<u64>() as f64,
    }
}

/// The functions of which only those with these numbers are described everywhere.
fn chosen(made: &[Unfinished], taken: &[usize]) -> Vec<Unfinished> {
    let mut all = made.to_vec();
    let mut is_taken = vec![false; all.len()];
    taken.iter().for_each(|&index| is_taken[index] = true);
    for (one, taken) in all.iter_mut().zip(is_taken) {
        if !taken {
            let calls = std::mem::take(&mut one.made.calls);
            let targets = std::mem::take(&mut one.targets);
            let kept = calls
                .into_iter()
                .zip(targets)
                .filter(|(call, _)| call.site != Site::Between);
            (one.made.calls, one.targets) = kept.unzip();
            one.made.everywhere = false;
        }
    }
    all
}
