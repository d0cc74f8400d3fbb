//! Whole reports from hand-made items, compared with what they should say to the letter.
