//! What the fuzz targets and the tests call: any bytes give an answer or an error.
